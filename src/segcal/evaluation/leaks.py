"""Calibrators that were fitted on cases which now judge them, recognised by content and not by name."""

from __future__ import annotations

from collections.abc import Mapping

from segcal.evaluation.mapping import Method


def leaks(methods: Mapping[str, Method], content: Mapping[str, str], consequence: str) -> list[str]:
    """Return a warning for each calibrator that was fitted on some of the cases.

    Args:
        methods: Methods by name; only fitted calibrators can leak.
        content: Fingerprint of each case by its name (`segcal.functional.fingerprint`), "" for none.
        consequence: What follows from it and what to do, as the end of the sentence.
    """
    found = []
    for name, method in methods.items():
        report = getattr(method, "fit_report_", None)
        if report is None:
            continue
        if report.fingerprints:
            known, how = {*report.fingerprints} - {""}, ""
            shared = [case for case, own in content.items() if own in known]
        else:
            how = " by their names (their content was not saved with it)"
            shared = [case for case in content if case in report.names]
        if shared:
            found.append(f"{name} was fitted on {len(shared)} of these {len(content)} cases{how}: {consequence}")
    return found
