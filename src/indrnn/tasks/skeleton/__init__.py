"""Actions of skeletons: NTU RGB+D, UTD-MHAD and any other set."""
