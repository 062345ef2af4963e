"""MNIST and CIFAR-10 from their official files: what there is, whether it is right, how to get it, how to read it.

    folder/MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte
    folder/cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin

No file is used before its size and SHA-256 are those of the official one.
"""
