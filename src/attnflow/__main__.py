from attnflow.cli import entry

entry()
