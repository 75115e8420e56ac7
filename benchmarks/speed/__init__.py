"""Speed: ratios of both sides in one process, warm, with the compile time apart."""
