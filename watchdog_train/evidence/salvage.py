"""A bundle of what a killed collector had: `python -m watchdog_train.evidence.salvage REQUEST`.

It reads the draft in the staging folder and touches no process, so it has little to wait for.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from watchdog_train.core.diagnosis.diagnose import evidence_fingerprint
from watchdog_train.core.model import EvidenceResult
from watchdog_train.errors import WtrainError
from watchdog_train.evidence import answers, bundle, logs
from watchdog_train.evidence.request import EvidenceRequest, read_partial, read_request
from watchdog_train.explain.because import judge
from watchdog_train.rules import load_rules


def salvage(request: EvidenceRequest) -> EvidenceResult | None:
    """The bundle of a draft, with its diagnosis; None where there is no draft.

    Raises:
        OSError: nothing can be written, neither to the run directory nor to the staging folder.
    """
    staging = Path(request.staging_dir)
    partial, draft = read_partial(request), bundle.read_bundle(staging)
    if partial is None or draft is None:
        return None
    evidence = msgspec.structs.replace(
        draft.evidence, logs=logs.tails(request.log_files, logs.TAIL_LINES)
    )
    try:
        rules = load_rules(request.rules_dirs)
    except WtrainError:
        rules = load_rules()  # `wtrain config check` names what is wrong in rules of the user's
    found = judge(evidence, rules)
    result = msgspec.structs.replace(
        partial,
        dir=request.out_dir,
        explanation=found,
        fingerprint=evidence_fingerprint(evidence, found.family),
    )
    whole = msgspec.structs.replace(
        draft,
        verdict=answers.verdict(request, result),
        explanation=found,
        evidence=evidence,
    )
    bundle.write_staged(staging, whole)
    return bundle.publish(staging, Path(request.out_dir), result)


def main() -> int:
    """Salvages what the request file asked for."""
    salvage(read_request(Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
