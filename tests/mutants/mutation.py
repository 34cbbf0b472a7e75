"""A mutation: one change of the code that would break a promise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = "airflow_provider_microbatch"


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change that would break a promise.

    :param name: what the mutant does.
    :param why: what a user would lose.
    :param file: below the package.
    :param old: text that is in the file exactly once.
    :param new: what stands there instead.
    :param tests: files of which one must fail.
    """

    name: str
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Change the copy below ``root``.

        :raises ValueError: if the text is not there once, or what comes out is no Python: the list is old.
        """
        path = root / PACKAGE / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"mutation {self.name!r}: its text is {text.count(self.old)} times in {self.file}")
        changed = text.replace(self.old, self.new)
        try:
            compile(changed, self.file, "exec")
        except SyntaxError as error:
            # It would not be caught by a test, but by every import.
            raise ValueError(f"mutation {self.name!r} makes no Python of {self.file}: {error}") from None
        path.unlink()  # it may be a link to the tree that other mutants are made of
        path.write_text(changed)
