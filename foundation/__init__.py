"""The foundation model: data contract, request store, reader, model, parallelism, training, checkpoints."""
