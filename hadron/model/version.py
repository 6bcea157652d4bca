"""Which version of Hadron this is: every room may say so, `hadron` tells it to programs."""

VERSION = "0.1.0"
