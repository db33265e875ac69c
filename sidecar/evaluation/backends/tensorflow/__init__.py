"""Evaluate with TensorFlow, and models of Keras 3 or tf_keras."""
