"""The OpenAPI document of the HTTP door, and the fields of its answers."""
