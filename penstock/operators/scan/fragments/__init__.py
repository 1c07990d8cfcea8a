"""Fragments: partial aggregates of panes and groups, from which windows are assembled."""

from penstock.operators.scan.fragments.fragmenter import Fragmenter, combined, merged

__all__ = ["Fragmenter", "combined", "merged"]
