"""FCN-ResNet101 on COCO (Sec. 4.1), any other network with VOC's classes, or a folder of ready logits."""
