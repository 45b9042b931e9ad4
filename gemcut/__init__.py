"""The front door: project file, command line, pipeline."""
