"""What a run will cost before it is started: bytes, flight times, memory and disk, and money, by arithmetic alone."""
