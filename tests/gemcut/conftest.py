"""Commands run in this process."""

import sys

import pytest

from gemcut.cli import main


@pytest.fixture
def gemcut(monkeypatch, capsys):
    """Run a command in this process → (exit code, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gemcut", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return ended.value.code, said.out, said.err

    return run
