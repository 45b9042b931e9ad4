"""`gemcut sync`: delivers to MLflow what tracking kept while the server did not answer."""

from __future__ import annotations

from typing import Any

from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.tracking import uri_of
from serving.errors import Problem, UserError


def sync(loaded: LoadedProject, screen: Screen) -> dict[str, Any]:
    """Send every run of the work folder, parents first; `num_entries` counts what the server did not have.

    Raises:
        UserError: the server does not take it; all is kept, and sent by the next try.
    """
    from eval.tracking import SPOOL_FILE
    from eval.tracking import sync as send

    uri = uri_of(loaded)
    folders = sorted(file.parent for file in loaded.workdir.rglob(SPOOL_FILE))
    num_entries = 0
    with screen.progress("sync") as tell:
        for done, folder in enumerate(folders):
            tell(done / len(folders), str(folder.relative_to(loaded.workdir)))
            try:
                num_entries += send(folder, uri)
            except UserError:
                raise
            except Exception as error:  # whatever MLflow raises when its server is out of reach
                got = str(error).partition("\n")[0][:200] or type(error).__name__
                remedy = "Start the server or correct `tracking.uri`, then run `gemcut sync` again; nothing is lost."
                raise UserError(Problem(f"{folder}: {uri}", "a tracking server that answers", got, remedy)) from error
    screen.say(f"[green]sent[/green] {num_entries:,} entries of {len(folders):,} runs to {uri}")
    return {"uri": uri, "num_runs": len(folders), "num_entries": num_entries}
