"""How an invited machine comes to be a member: what it says, once, on the control road, and what it is told."""

from dataclasses import dataclass

from zdiloco.core.bounds import MAX_NAME, check_text

MAX_SETTINGS = 256
MAX_SETTING = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Join:
    """Whoever holds an invitation asks that from now on `key`, public, in Z85, stand for its name in place of it; or,
    by that key itself, to be told again."""

    key: str

    def __post_init__(self) -> None:
        check_text(self, key=MAX_NAME)


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """The syncer has taken the key; this run has these settings, each as its path and its value as TOML writes it."""

    run_id: str
    settings: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        check_text(self, run_id=MAX_NAME)
        longest = max((len(path) + len(value) for path, value in self.settings), default=0)
        if len(self.settings) > MAX_SETTINGS or longest > MAX_SETTING:
            raise ValueError(f"Joined.settings are too long: at most {MAX_SETTINGS} of {MAX_SETTING} characters")


InvitationMessage = Join | Joined
