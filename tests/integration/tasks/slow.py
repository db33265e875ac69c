"""The plain task with data that take a second to read: 103 times 10 ms."""

import time

import plain
import tensorflow as tf

PAUSE_SECONDS = 0.01


def slow_set():
    def dawdle(x):
        time.sleep(PAUSE_SECONDS)
        return x

    def read(x, y):
        slowly = tf.numpy_function(dawdle, [x], x.dtype)
        slowly.set_shape(x.shape)
        return slowly, y

    return tf.data.Dataset.from_tensor_slices((plain.X, plain.Y)).map(read)


def task():
    return plain.task_on(slow_set)
