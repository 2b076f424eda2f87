"""CladeSecret: what it encrypts comes back, an altered body does not, and a body's length hides the content's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.errors import SealError
from bardo_pipeline.events.custody.clade_secret import CladeSecret

OURS, THEIRS = CladeSecret(b"o" * 32), CladeSecret(b"t" * 32)


@given(st.binary(max_size=20_000))
def test_a_body_opens_with_its_secret_alone(plaintext: bytes) -> None:
    body = OURS.encrypt(plaintext)
    assert OURS.decrypt(body) == plaintext
    assert OURS.encrypt(plaintext) == body
    assert (len(body) - 28).bit_count() == 1
    assert len(body) - 28 >= 4_096
    with pytest.raises(SealError, match="not made with the secret"):
        THEIRS.decrypt(body)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_an_altered_body_is_refused(plaintext: bytes, data: st.DataObject) -> None:
    body = bytearray(OURS.encrypt(plaintext))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealError):
        OURS.decrypt(bytes(body))


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 12, b"x" * 40])
def test_a_short_body_is_refused(body: bytes) -> None:
    with pytest.raises(SealError):
        OURS.decrypt(body)


def test_what_the_relay_sees_differs_between_clades() -> None:
    assert len({OURS.topic, OURS.token, THEIRS.topic, THEIRS.token, OURS.key_id, THEIRS.key_id}) == 6
    assert OURS.message_id("x") != THEIRS.message_id("x")
    with pytest.raises(SealError, match="32 bytes, not 3"):
        CladeSecret(b"abc")
