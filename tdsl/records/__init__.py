"""Records of tuning: the format of their files, and the schedules that programs take from them."""
