"""Everything that happens at request time: ids, numbers, manifest, ranker, latency gate. Runs without torch."""
