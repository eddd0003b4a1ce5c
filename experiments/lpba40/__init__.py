"""The paper's U-Net experiment on LPBA40 (Sec. 4.3), and the same protocol on data that anyone can get."""
