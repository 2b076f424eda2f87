"""Folders and registered identities for heirs. Both steps can fail, and both can be retried.

A golem's place is a folder of the home with its configuration, written under its lease. Its identity is a line of a
registry file.
Source: INH S13, steps 4 and 6.
"""

from __future__ import annotations

import orjson

from bardo_pipeline.errors import IdentityTakenError, LeaseError, ProvisioningError, RegistrationError
from bardo_pipeline.storage.home import Home, make_folder, replace_file
from bardo_pipeline.storage.leases import Lease

HOLDER = "succession"


def provision(home: Home, golem_id: str, configuration: str) -> str:
    """Create golems/GOLEM with the bardo.toml of the golem's runtime, or find it created. Returns its path in the home.

    Raises ProvisioningError while a writer holds the golem's lease, or if the folder cannot be written.
    """
    folder = home.root / "golems" / golem_id
    try:
        lease = Lease(home, golem_id, HOLDER)
    except (LeaseError, OSError) as error:
        raise ProvisioningError(f"golem {golem_id}: {error}") from error
    try:
        make_folder(folder)
        replace_file(folder / "bardo.toml", configuration.encode())
    except OSError as error:
        raise ProvisioningError(f"{folder} cannot be written: {error.strerror}: make room for it") from error
    finally:
        lease.release()
    return str(folder.relative_to(home.root))


class FileRegistry:
    """Registers identities as JSON lines in the home's registry/identities.jsonl, numbered from 1."""

    def __init__(self, home: Home) -> None:
        self._home, self.path = home, home.root / "registry" / "identities.jsonl"

    def register(self, golem_id: str, *, lineage_id: str, generation: int, predecessor_id: str) -> str:
        """Register a golem, once. Returns its identity.

        Raises RegistrationError if the file cannot be read or written, IdentityTakenError if another golem has the id.
        """
        golem = {
            "golem_id": golem_id, "lineage_id": lineage_id, "generation": generation, "predecessor_id": predecessor_id,
        }  # fmt: skip
        with self._home.lock("registry"):
            identities = self.identities()
            for entry in identities:
                if entry.get("golem_id") == golem_id:
                    if {name: entry.get(name) for name in golem} != golem:
                        raise IdentityTakenError(f"{self.path} has another golem {golem_id}: {entry}")
                    return str(entry["identity"])
            identity = f"local:{len(identities) + 1}"
            lines = [*identities, {"identity": identity, **golem}]
            content = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
            try:
                make_folder(self.path.parent)
                replace_file(self.path, content)
            except OSError as error:
                raise RegistrationError(f"{self.path} cannot be written: {error.strerror}") from error
        return identity

    def identities(self) -> list[dict[str, object]]:
        """Return all identities in the order of their numbers. Raises RegistrationError for an unreadable file."""
        try:
            lines = self.path.read_bytes().splitlines()
            identities = [orjson.loads(line) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, orjson.JSONDecodeError) as error:
            raise RegistrationError(f"{self.path} cannot be read ({error}): restore it from a copy") from error
        if not all(isinstance(entry, dict) and "identity" in entry for entry in identities):
            raise RegistrationError(f"{self.path} has a line without an identity: restore it from a copy")
        return identities
