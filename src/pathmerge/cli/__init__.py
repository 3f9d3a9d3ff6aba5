"""The `pathmerge` command: one module for each kind of subcommand; none has logic of its own."""

from pathmerge.cli.command import main

__all__ = ["main"]
