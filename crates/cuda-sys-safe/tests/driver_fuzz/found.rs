//! Programs on which simulator and GPU once differed.
