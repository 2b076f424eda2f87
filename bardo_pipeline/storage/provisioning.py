"""Provisioning: where an heir will live, and who knows it by name. Both can fail, and both may be tried again.

A place is a folder of the home with the heir's configuration, made under the golem's lease; an identity is a line of a
registry file. Others (a cloud's machines, an ERC-8004 registry) stand behind the same two protocols.
Source: INH S13, steps 4 and 6.
"""

from __future__ import annotations

from typing import Protocol

import orjson

from bardo_pipeline.errors import IdentityTakenError, LeaseError, ProvisioningError, RegistrationError
from bardo_pipeline.storage.home import Home, make_folder, replace_file
from bardo_pipeline.storage.journal.leases import Lease

HOLDER = "succession"


class Provisioner(Protocol):
    """Makes places for golems to live in."""

    def provision(self, golem_id: str, configuration: str) -> str:
        """Make a place that holds this configuration (TOML), or find it made. Returns its name.

        Raises ProvisioningError where there is none to be had.
        """
        ...


class Registry(Protocol):
    """Gives golems identities that others can look up."""

    def register(self, golem_id: str, *, lineage_id: str, generation: int, predecessor_id: str) -> str:
        """Register a golem, once. Returns its identity.

        Raises RegistrationError where that is refused now, IdentityTakenError where it will be for good.
        """
        ...


class HomeProvisioner:
    """A golem's folder in the home: golems/GOLEM with its bardo.toml, where a runtime finds how it is to live."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def provision(self, golem_id: str, configuration: str) -> str:
        """As Provisioner. Fails while a writer holds the golem, and where the folder cannot be written."""
        folder = self._home.root / "golems" / golem_id
        try:
            lease = Lease(self._home, golem_id, HOLDER)
        except (LeaseError, OSError) as error:
            raise ProvisioningError(f"golem {golem_id}: {error}") from error
        try:
            make_folder(folder)
            replace_file(folder / "bardo.toml", configuration.encode())
        except OSError as error:
            raise ProvisioningError(f"{folder} cannot be written: {error.strerror}: make room for it") from error
        finally:
            lease.release()
        return str(folder.relative_to(self._home.root))


class FileRegistry:
    """Identities as lines of JSON in registry/identities.jsonl of the home, numbered from 1."""

    def __init__(self, home: Home) -> None:
        self._home, self.path = home, home.root / "registry" / "identities.jsonl"

    def register(self, golem_id: str, *, lineage_id: str, generation: int, predecessor_id: str) -> str:
        """As Registry. Fails where the file cannot be read or written, and for a golem of another lineage's name."""
        said = {
            "golem_id": golem_id, "lineage_id": lineage_id, "generation": generation, "predecessor_id": predecessor_id,
        }  # fmt: skip
        with self._home.lock("registry"):
            known = self.identities()
            for one in known:
                if one.get("golem_id") == golem_id:
                    if {name: one.get(name) for name in said} != said:
                        raise IdentityTakenError(f"{self.path} has another golem {golem_id}: {one}")
                    return str(one["identity"])
            identity = f"local:{len(known) + 1}"
            lines = [*known, {"identity": identity, **said}]
            content = b"".join(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in lines)
            try:
                make_folder(self.path.parent)
                replace_file(self.path, content)
            except OSError as error:
                raise RegistrationError(f"{self.path} cannot be written: {error.strerror}") from error
        return identity

    def identities(self) -> list[dict[str, object]]:
        """Every identity, in the order of their numbers. Raises RegistrationError for a file that cannot be read."""
        try:
            lines = self.path.read_bytes().splitlines()
            found = [orjson.loads(line) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, orjson.JSONDecodeError) as error:
            raise RegistrationError(f"{self.path} cannot be read ({error}): restore it from a copy") from error
        if not all(isinstance(one, dict) and "identity" in one for one in found):
            raise RegistrationError(f"{self.path} holds what is no identity: restore it from a copy")
        return found
