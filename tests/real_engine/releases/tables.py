"""Sparkwright's tables about releases, checked against the stored reports."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.engines.vllm import (
    architecture_support,
    environment,
    flags,
    option_history,
    option_values,
    options,
    prediction,
    versions,
)
from sparkwright.engines.vllm.rules import access
from tests.real_engine.cases import Case, Prediction
from tests.real_engine.prediction import LATE, predict
from tests.real_engine.releases.cases import ALL
from tests.real_engine.releases.kept import CaseResult, Report

TINY = Path(__file__).parents[2] / "data" / "tiny"
#: unchecked variables: those set by images, and one of ROCm that 0.29 and 0.30 lack, unlike earlier and later releases
OF_NO_CHECK = {
    f"{environment.VARIABLE_PREFIX}{name}" for name in (*environment.IMAGE_VARIABLES, "ROCM_USE_AITER_FP4_ASM_GEMM")
}
COMPARED = ("chunked_prefill", "prefix_caching", "mamba_cache_mode")
Seen = Callable[[Report], bool | None]


@dataclass(frozen=True)
class Change:
    """A change in the tables: from `release` on, `what` is true. seen: whether a report confirms it; None if unknown."""

    release: str
    what: str
    source: str
    seen: Seen

    def wrong(self, report: Report) -> bool:
        """Return True if this release contradicts it."""
        since = versions.at_least(versions.parse(report.version), self.release)
        return None not in (shown := self.seen(report), since) and shown != since

    def evidence(self, reports: Sequence[Report]) -> str:
        """Describe the evidence of real releases, for a table. reports: oldest first."""
        names = {report.version: f"{report.version}{' (source)' if report.of_source else ''}" for report in reports}
        without = [names[report.version] for report in reports if self.seen(report) is False]
        having = [names[report.version] for report in reports if self.seen(report)]
        if any(self.wrong(report) for report in reports):
            return f"**wrong**: not in {', '.join(without) or 'none'}; in {', '.join(having) or 'none'}"
        if without and having:
            return f"seen: not yet in {without[-1]}, so in {having[0]}"
        if having:
            return f"seen in {having[0]}; when it began is read"
        return f"not yet in {without[-1]}: read, not seen" if without else "read, not seen"


def disagreements(report: Report) -> list[str]:
    """Return a sentence for each disagreement between a release and the tables."""
    wrong = [change for change in list_changes() if change.wrong(report)]
    return [
        *(f"{change.what} from {change.release} on ({change.source})" for change in wrong),
        *_options(report),
        *_architectures(report),
        *_variables(report),
        *_config_file(report),
        *(f"{case.name}: {sentence}" for case in ALL for sentence in find_contradictions(case, report)),
    ]


def predict_case(case: Case, release: str) -> Prediction:
    """Return the prediction of the rules for a case in a release."""
    path = TINY / f"{case.model}.json"
    return predict(case, json.loads(path.read_text()) if path.exists() else {}, release)


def find_contradictions(case: Case, report: Report) -> list[str]:
    """Return the predictions of the rules that this release contradicts."""
    result, predicted = report.cases.get(case.name), predict_case(case, report.version)
    if result is None or predicted.starts is None:
        return []
    if result.not_here or (result.starts and predicted.starts):
        values = {name: getattr(predicted, name) for name in COMPARED if name in result.settings}
        return [
            f"{name}: predicted {value}, is {result.settings[name]}"
            for name, value in values.items()
            if value not in (None, result.settings[name])
        ]
    late = result.how == "asked" and predicted.why.startswith(LATE)
    if result.starts == predicted.starts or late:
        return []
    return [f"predicted that it {'starts' if predicted.starts else 'is refused'}; it {_describe_end(result)}"]


def _describe_end(result: CaseResult) -> str:
    if not result.starts:
        return f"was refused: {result.said}"
    return "started" if result.how == "started" else "was accepted"


# -- options and architectures -------------------------------------------------------------------------------------------------


def _options(report: Report) -> Iterator[str]:
    version = versions.parse(report.version)
    for name in sorted({*options.all_options(), *option_history.CHANGES_BY_FLAG, *report.options}):
        if name.startswith("no-") or name == "help":
            continue
        result, has = option_history.find_existence(name, version).exists, _has_option(name, report)
        if result is not None and result != has:
            yield f"--{name}: the tables say it {'exists' if result else 'does not exist'}, and it {'does' if has else 'does not'}"
    defaults = option_values.reference_shapes()
    everywhere = options.reference_options(options.OLDEST_REFERENCE_RELEASE) & options.reference_options(
        options.MIDDLE_REFERENCE_RELEASE
    )
    for name in sorted(everywhere & {name for name, shape in report.options.items() if shape} & set(defaults)):
        ours, theirs = _class(report.options[name]), _class(defaults[name])
        if ours != theirs:
            yield f"--{name}: takes {report.options[name]} here, {defaults[name]} in {options.TABLE_RELEASE}"


def _has_option(name: str, report: Report) -> bool:
    """Return whether the release has the option. An option with its own row is not completed: --device is not --device-ids."""
    names = [name] if name in option_history.CHANGES_BY_FLAG else options.complete_name(name, report.options)
    return len(names) == 1 and names[0] in report.options


def count_unknown(report: Report) -> int:
    """Return the number of options whose existence in this release the tables do not know."""
    version = versions.parse(report.version)
    return sum(option_history.find_existence(name, version).exists is None for name in report.options)


def _class(shape: str) -> str:
    """Return a shape without its choices."""
    if not shape.startswith("{"):
        return shape
    return "words" if shape.endswith(option_values.MANY_MARK) else "word"


def _architectures(report: Report) -> Iterator[str]:
    for name in architecture_support.SUPPORT:
        result, has = architecture_support.is_supported(name, report.version), name in report.architectures
        if result is not None and result != has:
            yield f"{name}: the tables say it {'loads' if result else 'does not load'}, and it {'does' if has else 'does not'}"


def _variables(report: Report) -> Iterator[str]:
    """Yield contradictions about variables; none where the release's variables are unknown."""
    version, read = versions.parse(report.version), set(report.variables)
    known = {environment.VARIABLE_PREFIX + short for short in environment.variable_histories()}
    for name in sorted((read | known) - OF_NO_CHECK if read else ()):
        result = environment.find_unread_variable(name, version) is None
        if result != (name in read) and name.startswith(environment.VARIABLE_PREFIX):
            yield f"{name}: the tables say that it is {'read' if result else 'not read'}, and it is {'not ' if result else ''}read"


def _config_file(report: Report) -> Iterator[str]:
    result = report.cases.get("switch-off-in-a-config-file")
    if result is not None and result.settings.get("prefix_caching") is False:
        yield "a false in a --config file is used, but the rule config-file-switches says that it is ignored"


# -- changes from release to release ---------------------------------------------------------------------------------------------


def list_changes() -> list[Change]:
    """Return every dated change in the tables, oldest release first."""
    dated = [*_option_changes(), *_setting_changes()]
    return sorted(dated, key=lambda value: (versions.parse(value.release), value.what))


def _option_changes() -> Iterator[Change]:
    for row in option_history.OPTION_CHANGES:
        source = " ".join(filter(None, (row.source, f"({row.certainty})")))
        if row.since:
            yield Change(row.since, f"`--{row.flag}` exists", source, _has(row))
        if row.removed_in:
            yield Change(row.removed_in, f"`--{row.flag}` is gone", source, _gone(row))


def _has(row: option_history.OptionChange) -> Seen:
    """Return whether a report has an option; None for releases after its removal."""

    def seen(report: Report) -> bool | None:
        gone = row.removed_in and versions.at_least(versions.parse(report.version), row.removed_in)
        return None if gone else row.flag in report.options

    return seen


def _gone(row: option_history.OptionChange) -> Seen:
    """Return whether an option is gone; None for releases before it was added, or after it was added again."""

    def seen(report: Report) -> bool | None:
        version = versions.parse(report.version)
        added = not row.since or versions.at_least(version, row.since)
        added_again = bool(row.added_again) and versions.at_least(version, row.added_again)
        return row.flag not in report.options if added and not added_again else None

    return seen


def _setting_changes() -> Iterator[Change]:
    for row in prediction.DEFAULTS[flags.MEMORY_UTILIZATION][1:]:
        defaults = repr(row.value)
        yield Change(
            row.since,
            f"`--gpu-memory-utilization` is {defaults} by default",
            row.source,
            lambda report, usual=defaults: (  # type: ignore[misc]
                report.defaults["gpu_memory_utilization"] == usual if report.defaults else None
            ),
        )
    for row in prediction.DEFAULTS[prediction.PREFIX_CACHING_HYBRID][1:]:
        what = "prefix caching of a recurrent hybrid is on by default"
        yield Change(row.since, what, row.source, _setting("hybrid-defaults", "prefix_caching", row.value))
    what = "chunked prefill can be turned off"
    since = prediction.FIRST_RELEASE_WITH_OPTIONAL_CHUNKING
    yield Change(since, what, "source of 0.11.0", _setting("dense-chunked-off", "chunked_prefill", False))
    what = "prefix caching of a recurrent hybrid can be turned on"
    since = prediction.FIRST_RELEASE_WITH_RECURRENT_CACHING
    yield Change(since, what, "source of 0.11.0", _setting("hybrid-prefix-on", "prefix_caching", True))
    what = "the cache mode of Mamba2 models is `align`, not `all`, with prefix caching"
    since = prediction.FIRST_RELEASE_WITH_ONLY_ALIGN
    yield Change(since, what, "source of 0.17.1", _setting("mamba2-prefix-on", "mamba_cache_mode", "align"))
    what = "a recurrent hybrid with prefix caching is refused without chunked prefill"
    yield Change("0.15.0", what, "source of 0.17.1 and 0.33.0", _refused("hybrid-prefix-on-chunked-off"))
    since = prediction.FIRST_RELEASE_REFUSING_ALL
    yield Change(since, "`--mamba-cache-mode all` is refused", "the help of 0.32.0", _refused("mamba-cache-all"))
    what = "the log hides the API key of the command line"
    yield Change(access.FIRST_RELEASE_HIDING_KEY, what, "a real start of 0.32.0", _key_hidden)


def _key_hidden(report: Report) -> bool | None:
    return None if report.key_shown is None else not report.key_shown


def _setting(case: str, name: str, value: object) -> Seen:
    def seen(report: Report) -> bool | None:
        result = report.cases.get(case)
        return None if result is None or name not in result.settings else result.settings[name] == value

    return seen


def _refused(case: str) -> Seen:
    def seen(report: Report) -> bool | None:
        result = report.cases.get(case)
        return None if result is None or result.not_here else not result.starts

    return seen
