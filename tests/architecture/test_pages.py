"""What the pages say exists: commands, links, and the one test command that CI runs too."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
ids = [str(page.relative_to(ROOT)) for page in PAGES]

TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
COMMAND = re.compile(r"(?:^|`)make ([a-z]+)\b", flags=re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_make_commands_that_a_page_names_exist(page):
    assert set(COMMAND.findall(page.read_text())) - TARGETS == set()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_of_a_page_lead_to_files(page):
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_ci_runs_the_test_command_of_the_readme():
    assert "make test" in COMMAND_LINES
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "make test"


def test_setup_is_part_of_both_commands():
    rules = dict(re.findall(r"^([a-z]+): ([a-z ]+?) ##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert rules == rules | {"demo": "setup", "test": "check", "check": "setup"}


COMMAND_LINES = [line.split("#")[0].strip() for line in (ROOT / "README.md").read_text().splitlines()]
