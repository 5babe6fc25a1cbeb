"""Record batches: encode, decode, check and filter them. Without I/O."""
