"""The command `report`: a page about a run or a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def report(path: Annotated[Path, tyro.conf.Positional], out: Path | None = None) -> int:
    """Write one self-contained HTML page about a run or a study: settings, tables, figures, problems, circuits.

    Args:
        path: A run's directory, or a study's results: RESULTS/<study>/<scale>-<recipe>.
        out: The file to write, .html; none: report.html in that directory.
    """
    from pathmerge.viewer.report import write_report

    print(f"wrote {write_report(path, out)}")
    return 0
