"""Changes between two releases, from their reports."""

from collections.abc import Iterator, Mapping, Sequence

from sparkwright.engines.vllm import option_values
from sparkwright.engines.vllm.versions import parse
from tests.real_engine.releases.kept import CaseResult, Report


def previous_report(version: str, reports: Sequence[Report]) -> Report | None:
    """Return the report of the newest release before this one. reports: oldest first."""
    mine = parse(version)
    older = [item for item in reports if mine and (other := parse(item.version)) and other < mine]
    return older[-1] if older else None


def describe_changes(old: Report, new: Report) -> dict[str, list[str]]:
    """Return the changes by heading, without empty headings."""
    lines_by_heading = {
        "options that are new": [f"--{name} {new.options[name]}" for name in _added(new.options, old.options)],
        "options that are gone": [f"--{name}" for name in _added(old.options, new.options)],
        "options that take something else": list(_shapes(old.options, new.options)),
        "defaults that differ": list(_values(old.defaults, new.defaults)),
        "architectures that are new": sorted(set(new.architectures) - set(old.architectures)),
        "architectures that are gone": sorted(set(old.architectures) - set(new.architectures)),
        "lines of the log that are no longer found": [] if new.of_source else sorted(set(old.lines) - set(new.lines)),
        "lines of the log that are found again": sorted(set(new.lines) - set(old.lines)),
        "cases that end otherwise": list(_cases(old.cases, new.cases)),
    }
    if None not in (old.key_shown, new.key_shown) and old.key_shown != new.key_shown:
        lines_by_heading["the API key"] = [f"its log {'shows' if new.key_shown else 'no longer shows'} it"]
    return {heading: lines for heading, lines in lines_by_heading.items() if lines}


def _added(these: Mapping[str, str], those: Mapping[str, str]) -> list[str]:
    return sorted(set(these) - set(those))


def _shapes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(set(old) & set(new)):
        if not old[name] or not new[name]:
            continue
        was, now = _words(old[name]), _words(new[name])
        if was is None or now is None:
            if old[name] != new[name]:
                yield f"--{name}: {old[name]} before, {new[name]} now"
        elif set(was) != set(now):
            more = [f"+{word}" for word in now if word not in was]
            yield f"--{name}: {' '.join([*more, *(f'-{word}' for word in was if word not in now)])}"


def _words(shape: str) -> list[str] | None:
    """Return the choices of a shape, or None."""
    if not shape.startswith("{"):
        return None
    return shape.removesuffix(option_values.MANY_MARK).removesuffix(option_values.OPEN_MARK).strip("{}").split(",")


def _values(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(set(old) & set(new)):
        if old[name] != new[name]:
            yield f"--{name.replace('_', '-')}: {old[name]} before, {new[name]} now"


def _cases(old: Mapping[str, CaseResult], new: Mapping[str, CaseResult]) -> Iterator[str]:
    for name, now in new.items():
        was = old.get(name)
        if was is not None and _end(was) != _end(now):
            yield f"{name}: {_end(was)} before, {_end(now)} now"


def _end(result: CaseResult) -> str:
    """Describe the outcome of a case, without settings that are not known for all cases."""
    if result.not_here:
        return f"not on a CPU ({result.not_here})"
    if not result.starts:
        return f"refused: {result.said}"
    settings = {
        name: value for name, value in result.settings.items() if name not in ("block_size", "memory_utilization")
    }
    return f"taken: {', '.join(f'{name} {value}' for name, value in settings.items())}"
