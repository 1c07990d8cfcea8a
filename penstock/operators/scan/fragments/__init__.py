"""Fragments: partial aggregates of panes and groups, from which windows are assembled."""

from penstock.operators.scan.fragments.fragmenter import Fragmenter, merge_fragments, merge_stretches

__all__ = ["Fragmenter", "merge_fragments", "merge_stretches"]
