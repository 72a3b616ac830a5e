"""The programs that play the things under test, one file each; each is a process that can be killed."""
