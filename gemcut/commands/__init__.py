"""What each command does, one file each; `gemcut/cli.py` gives them their arguments."""
