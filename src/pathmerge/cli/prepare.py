"""The command `compile`."""

from __future__ import annotations

import time


def compile_command(threads: int = 2) -> int:
    """Compile what takes long now, instead of when it is first needed; a minute or two, once for a machine.

    On a cluster, once for a home folder that its machines share, before many processes begin.

    Args:
        threads: Cores to compile with.
    """
    from pathmerge.errors import check_range
    from pathmerge.kernels.compile import CACHE_DIRECTORY
    from pathmerge.prepare import compile_parts, parts

    check_range("threads", threads, 1, 1024)
    missing = [part for part in parts() if not part.done]
    if missing:
        print(f"compiling {len(missing)} sets of kernels, once for this machine: a minute or two", flush=True)
    began = time.monotonic()
    for part in compile_parts(missing, threads):
        print(f"  {time.monotonic() - began:4.0f} s  {part.name}", flush=True)
    print(f"the kernels are compiled, in {CACHE_DIRECTORY}")
    return 0
