"""The latency gate: does a bundle keep its placement's budget?"""
