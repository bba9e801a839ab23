"""attnflow cache [info|clear]: compiled programs on disk."""

from attnflow import cache
from attnflow._checks import choice

HELP = """usage: attnflow cache [info|clear]

What has been compiled once on this machine is kept, and not compiled again.
  info   where it is kept, how many programs, how much space (the default)
  clear  remove all of it

ATTNFLOW_CACHE in the environment: another folder, or off."""


def run(arguments: list[str]) -> int:
    action = arguments[0] if arguments else "info"
    if action in ("-h", "--help"):
        print(HELP)
        return 0
    choice("action", action, ("info", "clear"))
    if arguments[1:]:
        raise ValueError(f"{arguments[1]!r} is not known: attnflow cache --help tells the options")
    found = cache.clear() if action == "clear" else cache.info()
    if found.folder is None:
        print(f"cache: off ({cache.VARIABLE} in the environment)")
    elif action == "clear":
        print(f"cache: removed {_amount(found)} from {found.folder}")
    else:
        limit = found.limit / 2**20
        print(f"cache: {_amount(found)} in {found.folder} (at most {limit:.0f} MiB of programs)")
    return 0


def _amount(found: cache.Info) -> str:
    count = "1 program" if found.programs == 1 else f"{found.programs} programs"
    return f"{count}, {found.bytes / 2**20:.1f} MiB"
