"""Embedding models: a model that changes on disk and a migration to another model; vectors never mix and none is
lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.cli.output import tables
from bardo_pipeline.cli.output.answers import show_warning
from bardo_pipeline.curator.episodes import TEXT_FIELDS
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes, refresh_index, similar_episodes
from bardo_pipeline.derivation.memory.embed_texts import (
    check_drift,
    drift_warning,
    pausing_check,
    recorded_vectors,
    suspect_count,
)
from bardo_pipeline.derivation.reports.home_health import faults, health_of
from bardo_pipeline.derivation.versions import embedder_migration
from bardo_pipeline.derivation.versions.embedder_migration import reembed
from bardo_pipeline.derivation.versions.rebuild import derive_everything, rebuild
from bardo_pipeline.derivation.versions.side_derivations import stored_derivations
from bardo_pipeline.errors import ConfigError, EmbedderMismatch, EmbeddingPaused, RecordError
from bardo_pipeline.retrieval.embedder_drift import REFERENCE_TEXTS
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.embedding.embedders import open_embedder
from bardo_pipeline.storage.log.protocol import VECTORS_SCHEMA
from bardo_pipeline.storage.log.snapshot import LogAsOf
from bardo_pipeline.storage.verification.verify import verify
from jobs.schedules import every_week
from tests.conftest import NOW, copy_home, home_without_verdicts
from tests.definitions.running import decision_of, run
from tests.support.homes.altered_models import altered, own_models, put

LATER = NOW + timedelta(days=1)
IDENTITY = [field.name for field in fields(EmbedderIdentity)]


def fingerprints(stores: DerivationContext) -> dict[str, str]:
    return {name: stores.projections.digest(name).fingerprint for name in TABLES}


def plain(stores: DerivationContext) -> pa.Table:
    """Return the episodes without the columns of the embedder."""
    rows = stores.projections.read("episodes")
    return rows.drop_columns([n for n in TEXT_FIELDS if n != "text_hash"])


def vectors_on_record(stores: DerivationContext) -> pa.Table:
    from deltalake import DeltaTable

    return pa.table(DeltaTable(stores.home.vectors).to_pyarrow_table())


def warned(stores: DerivationContext) -> str:
    """Return the embedder that an answer names."""
    with tables.out.capture() as answer:
        show_warning(drift_warning(stores))
    return answer.get()


@pytest.fixture(scope="module")
def unread(brief_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a brief home's log without any embedded text; the model was checked at the start."""
    root = home_without_verdicts(brief_home, tmp_path_factory.mktemp("unread") / "home")
    shutil.rmtree(root / "log" / "vectors")
    shutil.rmtree(root / "log" / "sums", ignore_errors=True)
    check_drift(DerivationContext.open(root), now=NOW)
    return root


@pytest.fixture
def waiting(unread: Path, tmp_path: Path) -> Path:
    return copy_home(unread, tmp_path / "waiting")


@pytest.fixture(scope="module")
def remembered(brief_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_home(brief_home, tmp_path_factory.mktemp("remembered") / "home")
    refresh_index(DerivationContext.open(root))
    return root


@pytest.fixture
def known(remembered: Path, tmp_path: Path) -> DerivationContext:
    return DerivationContext.open(copy_home(remembered, tmp_path / "known"))


# Metadata


@pytest.mark.row("MEM-12")
def test_every_recorded_vector_has_the_identity_of_its_embedder(known: DerivationContext) -> None:
    rows = vectors_on_record(known)
    assert rows.num_rows > len(REFERENCE_TEXTS)
    for row in rows.select(["embedder", "created_at", *IDENTITY]).to_pylist():
        assert EmbedderIdentity(**{name: row[name] for name in IDENTITY}).key == row["embedder"]
        assert row["created_at"] == NOW
    assert known.log.identities() == {known.embedder.identity.key: known.embedder.identity}


@pytest.mark.row("MEM-12")
def test_a_vector_with_metadata_that_contradict_its_key_is_refused(known: DerivationContext) -> None:
    rows = vectors_on_record(known).slice(0, 2).select(VECTORS_SCHEMA.names).cast(VECTORS_SCHEMA)
    rows = rows.take(pa.array([0, 1]))
    at = VECTORS_SCHEMA.names.index("version")
    other = rows.set_column(at, VECTORS_SCHEMA.field("version"), pa.array(["another"] * 2))
    with pytest.raises(RecordError, match="but the identity"):
        known.log.record_vectors(other)


@pytest.mark.full
@pytest.mark.row("MEM-12")
def test_vectors_of_another_model_are_not_mixed_with_recorded_vectors(known: DerivationContext) -> None:
    folder, half = known.home.derivations / "half", known.log.version // 2
    early = replace(DerivationContext.open(known.home.root, beside=folder), as_of=LogAsOf(known.log, version=half))
    assert derive_episodes(early, now=NOW)[-1].rows_written > 0
    later, before = DerivationContext.open(known.home.root, beside=folder), early.projections.digest("episodes")
    # As after an upgrade of the model's runtime: the same name gives vectors under another identity.
    later.share_embedder(open_embedder("minilm-int8", known.home.models))
    with pytest.raises(EmbedderMismatch) as raised:
        derive_episodes(later, now=LATER)
    for statement in (str(known.embedder.identity), str(later.embedder.identity), "bardo reembed"):
        assert statement in str(raised.value)
    assert later.projections.digest("episodes") == before
    assert derive_episodes(DerivationContext.open(known.home.root, beside=folder), now=LATER)[-1].rows_written > 0


# Drift


@pytest.mark.full
@pytest.mark.row("MEM-12")
def test_a_drifted_model_pauses_embedding_until_it_is_restored(waiting: Path, unread: Path) -> None:
    folder = own_models(waiting)
    sound = altered(folder, 1.0)
    stores = DerivationContext.open(waiting)
    drift = check_drift(stores, now=LATER).drift
    assert drift.verdict == "critical", drift
    before = vectors_on_record(stores).num_rows
    for _ in range(2):
        with pytest.raises(EmbeddingPaused, match=r"away from its own.*bardo drift --check.*bardo reembed"):
            derive_episodes(stores, now=LATER)
    assert stores.projections.digest("episodes").rows == 0
    assert vectors_on_record(stores).num_rows == before
    assert "minilm had drifted from its recorded vectors" in warned(stores)
    (fault,) = [f for f in faults(health_of(stores, LATER), stores.policy) if f.measure == "vectors.drift"]
    assert fault.value > fault.limit
    put(folder, sound)
    mended = DerivationContext.open(waiting)
    assert pausing_check(mended) is not None, "embedding stays paused until the next check"
    assert check_drift(mended, now=LATER + timedelta(hours=1)).drift.verdict == "healthy"
    assert not warned(mended)
    derive_everything(mended, now=LATER)
    never = DerivationContext.open(copy_home(unread, waiting.parent / "never"))
    derive_everything(never, now=NOW)
    assert fingerprints(mended) == fingerprints(never)
    assert verify(mended.home).clean


@pytest.mark.full
@pytest.mark.row("MEM-12")
def test_a_slight_drift_warns_without_pausing_embedding(waiting: Path) -> None:
    altered(own_models(waiting), 0.5)
    stores = DerivationContext.open(waiting)
    drift = check_drift(stores, now=LATER).drift
    assert drift.verdict == "warning", drift
    assert derive_episodes(stores, now=LATER)[-1].rows_written > 0


@pytest.mark.full
@pytest.mark.row("MEM-12")
def test_drift_is_checked_automatically_after_a_week(waiting: Path) -> None:
    altered(own_models(waiting), 1.0)
    stores, week = (
        DerivationContext.open(waiting),
        timedelta(days=DerivationContext.open(waiting).policy.embedding.drift_days),
    )
    recorded_vectors(stores, ["a text within the week"], NOW + week - timedelta(hours=1))
    with pytest.raises(EmbeddingPaused):
        recorded_vectors(stores, ["a text after it"], NOW + week)
    assert [c.drift.verdict for c in stores.embedding_log.checks()] == ["healthy", "critical"]
    assert suspect_count(stores) == 1
    assert recorded_vectors(stores, ["a text within the week"], NOW + week)[1].num_rows == 1, (
        "a recorded vector needs no model"
    )


@pytest.mark.full
@pytest.mark.row("MEM-12")
def test_reembed_accepts_a_permanently_changed_model(waiting: Path) -> None:
    stores = DerivationContext.open(waiting)
    derive_everything(stores, now=NOW)
    sound = plain(stores)
    altered(own_models(waiting), 1.0)
    stores = DerivationContext.open(waiting)
    check_drift(stores, now=LATER)
    done = reembed(stores, now=LATER)
    assert (done.old, done.new) == ("minilm", "minilm@1")
    after = DerivationContext.open(waiting)
    assert after.embedder_name == "minilm@1"
    assert pausing_check(after) is None
    assert plain(after).equals(sound)
    assert recorded_vectors(after, ["something new"], LATER)[1].num_rows == 1


# Migration


@pytest.mark.full
@pytest.mark.row("MEM-12")
def test_a_migration_to_another_model_and_back_restores_fingerprints(known: DerivationContext) -> None:
    before, asked = fingerprints(known), similar_episodes(known, "gas spiked", limit=3)
    texts = {
        *known.projections.growing("episodes").read(["text"])["text"].to_pylist(),
        *known.projections.replaceable("grimoire").read()["text"].to_pylist(),
    }
    rows: list[tuple[str, int, int]] = []
    done = reembed(known, "minilm-int8", now=LATER, on_progress=lambda *step: rows.append(step))
    assert ("vectors", len(texts), len(texts)) in rows
    new = DerivationContext.open(known.home.root)
    assert new.embedder_name == "minilm-int8" == done.new
    assert new.derivation_id == done.derivation_id != known.derivation_id
    in_force = {stored.name: stored.in_force for stored in stored_derivations(new)}
    assert in_force == {new.derivation_id: True, known.derivation_id: False}
    assert plain(new).equals(plain(known))
    assert {n for n, f in fingerprints(new).items() if f != before[n]} == {"episodes"}
    assert set(new.projections.read("episodes")["embedder"].to_pylist()) == {new.embedder.identity.key}
    hits = similar_episodes(new, "gas spiked", limit=3)
    assert set(hits["episode_id"].to_pylist()) & set(asked["episode_id"].to_pylist())
    assert all(table.equal for table in rebuild(new, now=LATER))
    back = reembed(new, "minilm", now=LATER)
    assert (back.new, back.texts) == ("minilm", len(texts))
    assert fingerprints(DerivationContext.open(known.home.root)) == before


MIGRATION_STEPS = ("refresh_index", "derive_everything", "recorded_vectors", "switch_to")
"""The steps of a migration, in order."""


@pytest.mark.row("MEM-12")
@pytest.mark.parametrize("step", [pytest.param(name, marks=pytest.mark.full) for name in MIGRATION_STEPS])
def test_an_interrupted_migration_keeps_the_old_model_and_resumes(
    known: DerivationContext, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, before = known.home.root, fingerprints(known)
    asked = similar_episodes(known, "gas spiked")

    class Lost(Exception):
        pass

    def broken(*_: object, **__: object) -> None:
        raise Lost

    with monkeypatch.context() as patch:
        patch.setattr(embedder_migration, step, broken)
        with pytest.raises(Lost):
            reembed(known, "minilm-int8", now=LATER)
    still = DerivationContext.open(root)
    assert (still.embedder_name, fingerprints(still)) == ("minilm", before)
    assert similar_episodes(still, "gas spiked").equals(asked)
    assert health_of(still, LATER).embedder.migrating_to == "minilm-int8"
    with pytest.raises(EmbedderMismatch, match=r"from minilm to minilm-int8 is half done.*minilm is in force"):
        DerivationContext.open(root, embedder="minilm-int8")
    assert reembed(still, now=LATER).resumed
    assert DerivationContext.open(root).embedder_name == "minilm-int8"
    assert plain(DerivationContext.open(root)).equals(plain(known))


@pytest.mark.row("MEM-12")
def test_an_invalid_migration_is_refused_before_it_begins(
    known: DerivationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for model, message in (
        ("minilm", "in force already"),
        (None, "in force already"),
        ("word2vec", "no embedder is called"),
        ("minilm@3", "turns are counted automatically"),
        ("nomic", "use the embedder minilm"),
    ):
        with pytest.raises(ConfigError, match=message):
            reembed(known, model, now=LATER)
    assert known.embedding_log.migrations() == []
    assert DerivationContext.open(known.home.root).embedder_name == "minilm"


@pytest.mark.full
@pytest.mark.row("MEM-12")
def test_the_index_is_switched_only_when_it_holds_every_episode(
    known: DerivationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder_migration, "refresh_index", lambda _: 0)
    with pytest.raises(embedder_migration.DerivationError, match="does not hold all"):
        reembed(known, "minilm-int8", now=LATER)
    assert DerivationContext.open(known.home.root).embedder_name == "minilm"


# In Dagster


@pytest.mark.full
@pytest.mark.row("MEM-12", "P-4")
def test_the_weekly_drift_job_records_a_verdict_and_fails_if_critical(
    waiting: Path, at_home: Callable[[Path], Path]
) -> None:
    folder = own_models(at_home(waiting))
    assert isinstance(decision_of(every_week, waiting), dg.RunRequest)
    assert run("drift_job", dg.DagsterInstance.ephemeral()).success
    altered(folder, 1.0)
    result = run("drift_job", dg.DagsterInstance.ephemeral(), raise_on_error=False)
    (failure,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    assert "the model has drifted" in failure.step_failure_data.user_failure_data.description
    assert [c.drift.verdict for c in DerivationContext.open(waiting).embedding_log.checks()] == [
        "healthy",
        "healthy",
        "critical",
    ]


def test_a_drift_check_reads_back_as_recorded(waiting: Path) -> None:
    stores = DerivationContext.open(waiting)
    made = [check_drift(stores, now=when) for when in (LATER, LATER)]
    assert DerivationContext.open(waiting).embedding_log.checks()[1:] == made
    assert isinstance(made[0].at, datetime)
    assert np.isclose(made[0].drift.norm_first_ppm, made[0].drift.norm_variance_ppm)
    assert pc.all(pc.equal(vectors_on_record(stores)["dimension"], 384)).as_py()
