"""Embedding models: local ONNX models, built once and verified by hash."""
