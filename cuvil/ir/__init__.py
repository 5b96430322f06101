"""The tensor and kernel IR: types, dialects, builder, verifier, text and reference interpreter."""
