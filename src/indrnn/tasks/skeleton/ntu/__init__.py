"""NTU RGB+D 60 and 120: skeleton files, the bodies in them, and the splits of the published protocols."""
