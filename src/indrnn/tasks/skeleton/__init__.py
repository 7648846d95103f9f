"""Actions of skeletons: NTU RGB+D, UTD-MHAD and any other set; `recipe` has the options and the paper's rows."""
