"""Checks that ranks work together as they mean to: what they hold alike is alike, what they count is counted once."""
