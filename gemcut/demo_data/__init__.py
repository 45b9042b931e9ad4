"""Where the logs of `gemcut demo` and of `examples/` come from."""
