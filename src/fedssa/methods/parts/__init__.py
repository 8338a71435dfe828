"""What methods share: class rows, prototypes, a shared model, extractors of a group, outputs on public data, means."""
