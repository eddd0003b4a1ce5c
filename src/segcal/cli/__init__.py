"""The command line: one file per command, listed in `segcal.cli.app`."""


def main() -> None:
    """Run the command line."""
    from segcal.cli.app import app

    app()
