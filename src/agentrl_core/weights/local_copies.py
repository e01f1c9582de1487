"""Read published versions on a server's machine; deltas are applied to a whole copy there."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import WeightsError
from agentrl_core.weights.delta import apply_delta, copy_whole, is_chained, read_base, result_digest
from agentrl_core.weights.manifest import listed_files, note_verified
from agentrl_core.weights.own_folder import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentrl_core.weights.place import WeightsPlace

logger = logging.getLogger(__name__)


@attrs.frozen
class _Copy:
    """Whole version in a folder of this machine."""

    version: int
    folder: Path
    digest: str


class LocalCopies:
    """Whole versions for one server: those of the place itself, or copies in `local` to which deltas are applied.

    `local` is a folder on this machine that the model server sees under the same path; None: the system's temporary
    folder. One version stays in it, and while the next one is made, two. `notice` gets a line where a version has to be
    read whole although it is a delta.
    """

    def __init__(self, place: WeightsPlace, local: Path | None, *, notice: Callable[[str], None]) -> None:
        self._place, self._own, self._notice = place, OwnFolder(local), notice
        self._have: _Copy | None = None

    @contextmanager
    def reading(self, version: int) -> Iterator[Path]:
        """Yield a whole, verified model directory of a version, which stays meanwhile; blocks while it is made.

        Raises `WeightsError` if a file is missing or not as it was written, or the versions that it builds on are gone.
        """
        with ExitStack() as held:
            folder = held.enter_context(self._place.opened(version))
            with _refused(version):
                chained = is_chained(folder)
            if not chained:
                with self._place.reading(version) as verified:
                    yield verified
                return
            yield self._whole(version, held)

    def close(self) -> None:
        """Remove the copies; idempotent."""
        self._have = None
        self._own.close()

    def _whole(self, version: int, held: ExitStack) -> Path:
        """Return the local copy of a version; make it of what is there, and where that fails, of the whole version."""
        chain = self._chain(version, held)
        if self._have is not None:
            # A resumed trainer may have published another version under the same number.
            with _refused(version):
                known = [index for index, (_, folder) in enumerate(chain) if result_digest(folder) == self._have.digest]
            try:
                if known:
                    return self._apply(chain[known[0] + 1 :], self._have.folder)
            except WeightsError as error:
                self._tell(chain, str(error))
            else:
                if len(chain) > 1:
                    self._tell(chain, f"version {self._have.version}, which is here, is none that it builds on")
        start, folder = chain[0]
        with _refused(version):
            copied = self._made(start, lambda draft: copy_whole(folder, draft))
        return self._apply(chain[1:], copied)

    def _apply(self, chain: list[tuple[int, Path]], whole: Path) -> Path:
        """Apply deltas one after the other; return the last version."""
        for version, delta in chain:
            base = whole
            with self._place.reading(version), _refused(version):
                whole = self._made(version, lambda draft, delta=delta, base=base: apply_delta(delta, base, draft))  # type: ignore[misc]
        return whole

    def _made(self, version: int, write: Callable[[Path], None]) -> Path:
        """Make the copy of a version beside the earlier one, which then goes; return its folder."""
        own = self._own.path()
        draft, folder = own / f".version-{version}.draft", own / f"version-{version}"
        for leftover in own.glob(".version-*"):
            shutil.rmtree(leftover)
        write(draft)
        if folder.exists():  # read anew because its content, or the trainer's version of that number, was another one
            shutil.rmtree(folder)
        draft.rename(folder)
        for path, (_, digest) in listed_files(folder).items():
            note_verified(folder / path, digest)
        if self._have is not None and self._have.folder != folder:
            shutil.rmtree(self._have.folder, ignore_errors=True)
        self._have = _Copy(version, folder, result_digest(folder))
        return folder

    def _chain(self, version: int, held: ExitStack) -> list[tuple[int, Path]]:
        """Return a version and all that it builds on, the whole one first; they stay as long as `held` is open."""
        chain: list[tuple[int, Path]] = []
        number = version
        while True:
            try:
                folder = held.enter_context(self._place.opened(number))
            except WeightsError as error:
                if number == version:
                    raise
                raise WeightsError(f"version {version} of the weights is a delta, and {error}") from error
            chain.insert(0, (number, folder))
            with _refused(version):
                base = read_base(folder)
                if base is None:
                    return chain
                if base.version >= number:
                    raise ValueError(f"{folder} is damaged: it says that it builds on version {base.version}")
            number = base.version

    def _tell(self, chain: list[tuple[int, Path]], why: str) -> None:
        number, version = chain[0][0], chain[-1][0]
        text = (
            f"{why}; reading the whole version {number} and {len(chain) - 1} deltas after it to get version {version}"
        )
        logger.warning("%s", text)
        self._notice(text)


@contextmanager
def _refused(version: int) -> Iterator[None]:
    """Turn what shows damaged weights, or a full disk, into `WeightsError`, which names the version."""
    try:
        yield
    except WeightsError:
        raise
    except Exception as error:  # whatever a file has in it must not end the server, only be refused
        text = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
        raise WeightsError(f"version {version} of the weights is refused: {text}") from error
