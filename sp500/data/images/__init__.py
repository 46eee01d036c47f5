"""Labelled images from files, all of one size, as whole numbers from 0 to 255."""
