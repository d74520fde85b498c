"""Folders of text as an index: passages with their lines, searched by words and by vectors."""
