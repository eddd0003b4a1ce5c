"""Readers and writers of single files."""
