"""Models of scikit-learn, written by skl2onnx: imported, they agree with ONNX Runtime."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("skl2onnx")
pytest.importorskip("sklearn")

import skl2onnx
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from npusim.errors import ExportError
from npusim.frontends.onnx import from_onnx
from tests.frontends.onnx.runtime import assert_agrees

X, CLASSES = load_iris(return_X_y=True)
X = X[::3].astype(np.float32)
CLASSES = CLASSES[::3]
TWO, NUMBERS = (CLASSES > 0).astype(int), (X @ np.arange(4)).astype(np.float32)


def written(model: Any, target: np.ndarray) -> Any:
    """Returns a model trained on the flowers, as ONNX."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # trained for a moment only
        model.fit(X, target)
        return skl2onnx.to_onnx(model, X[:1], target_opset={"": 21, "ai.onnx.ml": 3})


MODELS = {
    "linear": (LinearRegression(), NUMBERS),
    "logistic": (make_pipeline(StandardScaler(), LogisticRegression()), CLASSES),
    "logistic of two": (LogisticRegression(), TWO),
    "ridge": (RidgeClassifier(), CLASSES),
    "support vectors, linear": (LinearSVC(), CLASSES),
    "support vectors, radial": (SVR(), NUMBERS),
    "support vectors, polynomial": (SVR(kernel="poly"), NUMBERS),
    "support vectors, classes": (SVC(), CLASSES),
    "support vectors, two classes": (SVC(kernel="poly"), TWO),
    "norm 1": (make_pipeline(MinMaxScaler(), Normalizer("l1"), LinearRegression()), NUMBERS),
    "norm 2": (make_pipeline(MinMaxScaler(), Normalizer("l2"), LinearRegression()), NUMBERS),
    "norm max": (make_pipeline(RobustScaler(), Normalizer("max"), LinearRegression()), NUMBERS),
    "imputed": (make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()), CLASSES),
    "columns": (
        make_pipeline(
            ColumnTransformer([("a", StandardScaler(), [0, 1]), ("b", MinMaxScaler(), [2, 3])]),
            LogisticRegression(),
        ),
        CLASSES,
    ),
    "components": (make_pipeline(PCA(2), LinearRegression()), NUMBERS),
    "perceptron": (MLPClassifier((8,), max_iter=30, random_state=0), CLASSES),
    "tree": (DecisionTreeClassifier(max_depth=4, random_state=0), CLASSES),
    "forest": (RandomForestClassifier(10, max_depth=4, random_state=0), CLASSES),
    "forest of two": (RandomForestClassifier(10, max_depth=4, random_state=0), TWO),
    "forest of numbers": (RandomForestRegressor(10, random_state=0), NUMBERS),
    "boosted": (GradientBoostingClassifier(n_estimators=5, random_state=0), CLASSES),
    "boosted of two": (GradientBoostingClassifier(n_estimators=5, random_state=0), TWO),
    "boosted numbers": (GradientBoostingRegressor(n_estimators=5, random_state=0), NUMBERS),
    "means": (KMeans(3, n_init=1, random_state=0), CLASSES),
    "bayes": (GaussianNB(), CLASSES),
    "neighbours": (KNeighborsClassifier(3), CLASSES),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_agrees(name: str) -> None:
    model, target = MODELS[name]
    assert_agrees(written(model, target), {"X": X})


def test_labels_that_are_strings_are_refused() -> None:
    model = written(LogisticRegression(), np.array(["a", "b", "c"])[CLASSES])
    with pytest.raises(ExportError, match="labels that are strings"):
        from_onnx(model, shapes={"X": X.shape})


def test_probabilities_of_support_vectors() -> None:
    model = written(SVC(probability=True, random_state=0), TWO)
    assert_agrees(model, {"X": X}, rtol=3e-3)  # ONNX Runtime stops within 0.0025
    with pytest.raises(ExportError, match="found by an iteration"):
        from_onnx(written(SVC(probability=True), CLASSES), shapes={"X": X.shape})


def test_what_has_no_meaning_is_named() -> None:
    names = np.array([["a"], ["b"], ["c"]])
    model = skl2onnx.to_onnx(
        OneHotEncoder().fit(names),
        initial_types=[("X", skl2onnx.common.data_types.StringTensorType([None, 1]))],
    )
    with pytest.raises(ExportError, match="string"):
        from_onnx(model, shapes={"X": (3, 1)})
